"""One request over the ranks of a pipeline: stages, drafts, and who decides what runs."""
