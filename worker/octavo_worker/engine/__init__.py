"""The step loop: requests, their scheduling and memory, drafts, grammar masks, beams. It knows neither Redis nor how a
model computes."""
