"""One rank of a profiled job: `main` runs the `script` under the `recorder`, which follows the `schedule` of phases."""
