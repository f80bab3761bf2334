"""The API documents in a browser: served whole by this server, without a script or a style inside the page."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from tests.openapi import document

PLANES = ("worker", "control")


def test_leads_to_the_worker_protocol() -> None:
    answer = Client().get("/api/docs")

    assert (answer.status_code, answer["Location"]) == (302, "/api/docs/worker")


@pytest.mark.parametrize("plane", PLANES)
def test_serves_the_committed_document(plane: str) -> None:
    answer = Client().get(f"/api/schema/{plane}")

    assert answer["Content-Type"] == "application/json"
    assert answer.json() == document(plane)


@pytest.mark.parametrize("plane", PLANES)
def test_shows_it_without_anything_inline_or_from_elsewhere(plane: str) -> None:
    answer = Client().get(f"/api/docs/{plane}")
    page = answer.content.decode()

    assert document(plane)["info"]["title"] in page
    assert re.findall(r"<style|<script>|style=|\son\w+=|https?://", page) == []
    policy = dict(part.strip().split(" ", 1) for part in answer["Content-Security-Policy"].split(";"))
    assert policy["script-src"] == policy["style-src"] == "'self'"


@pytest.mark.parametrize("plane", PLANES)
def test_serves_every_file_that_the_page_needs(plane: str) -> None:
    page = Client().get(f"/api/docs/{plane}").content.decode()
    files = re.findall(r'(?:src|href)="([^"]+)"', page)

    assert len(files) == 6
    for file in files:
        assert Client().get(file.replace("&amp;", "&")).status_code == 200, file


@pytest.mark.parametrize("plane", PLANES)
def test_the_script_loads_the_document_of_its_plane(plane: str) -> None:
    script = Client().get(f"/api/docs/{plane}?script=")
    text = script.content.decode()

    assert script["Content-Type"].startswith("application/javascript")
    assert f'url: "/api/schema/{plane}"' in text
    assert '"validatorUrl": null' in text
