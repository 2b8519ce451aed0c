"""The same methods over a real federation, on Flower."""
