"""One rank of a profiled job: `main` runs the `script` under the `recorder`, whose phases `_schedule` plans."""
