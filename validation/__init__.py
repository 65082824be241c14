"""Published figures against ours. `python -m validation` judges every case and writes both reports."""
