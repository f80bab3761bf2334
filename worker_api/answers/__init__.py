"""Answers of the worker plane, one module for each module of views: every body besides those of wire/answers.py.

A refusal's docstring says when it is given. The tuples in capitals are what one route can answer.
"""
