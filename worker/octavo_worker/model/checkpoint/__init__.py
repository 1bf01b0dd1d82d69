"""From a folder of safetensors files to the layers of a decoder."""
