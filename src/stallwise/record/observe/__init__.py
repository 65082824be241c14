"""What is measured without changing the job: loader workers, layers, model features, collectives, torch's trace."""
