"""Statistics of measured times: confidence intervals, stalls from phases, spread of prediction errors."""
