"""Export a trained model and predict with it."""
