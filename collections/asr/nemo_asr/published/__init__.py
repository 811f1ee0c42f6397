"""Published models: their names, and what fetches them. No model is read here, and torch is not needed."""
