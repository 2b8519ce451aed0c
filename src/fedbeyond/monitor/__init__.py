"""Watch and profile runs."""
