"""Stands in for the published load client in labbook's tests, pinned apart from the server's source."""
