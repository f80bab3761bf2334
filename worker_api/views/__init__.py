"""The worker plane's views, one endpoint family a module."""
