"""The Responses API: bodies to jobs, the log of a job to events and to the response object. Pure functions throughout.

A response is a job with a `Record` attached: whatever process reads job and record tells the same events under the same
numbers.
"""
