"""Data from the policy: --stage=generate writes samples that prepare reads."""
