"""Fits the coefficients that the package ships on public measurements; says how well they hold where not fitted."""
