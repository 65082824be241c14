"""What a job takes and costs on machines that may vanish: how long they live, and what to plan for."""
