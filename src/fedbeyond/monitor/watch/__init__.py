"""Watch runs while they run: read a folder repeatedly and serve a page for a browser on the same computer."""
