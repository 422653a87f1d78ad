"""Recorded decisions of TensorRT-LLM's schedulers, held against those of `maitred.batching` and `maitred.compat.trtllm`."""
