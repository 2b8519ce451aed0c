"""The laws that every method obeys, and toy sites to check them on."""
