"""The control plane's views, one endpoint family a module."""
