"""Callbacks for training frameworks, and ranks that a framework starts itself."""
