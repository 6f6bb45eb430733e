"""Running a job: the scheduler decides, the driver sends, stages compute, drafters propose."""
