"""Operations on torch tensors, one signature for every device (INTERFACE: to be implemented, signatures stay).

The paged KV cache is one tensor `[num_blocks, layers, 2, kv_heads, block_size * head_dim]`, made by `empty_cache`.
What lies inside the last dimension belongs to the kernels (K may be stored transposed): Python never reads it.
`layer_cache = kv_cache[:, layer]` is what the layer's operations take; strides are passed on.

Ragged batches: T tokens of S sequences, `query_start[S + 1]` (int32) gives each sequence's range of rows.
All index tensors are int32 unless stated. dtypes: float32, bfloat16, float16. `out` tensors are written in place.
"""
# empty_cache(num_blocks, layers, kv_heads, block_size, head_dim, dtype, device) -> Tensor
# write_kv(k[T,Hkv,D], v[T,Hkv,D], layer_cache, slots[T] int64, block_size)
#     slot = block * block_size + offset; -1 skips the token (padding)
# rope_write_kv(qkv[T,(Hq+2Hkv)*D], q_out[T,Hq,D], layer_cache, slots[T] int64, positions[T] int64,
#     cos_sin[max_pos, rotary_dim] f32 (first half cos, second half sin), q_norm=None, k_norm=None [D], eps=1e-6,
#     block_size=16, interleaved=False, norm_offset=0.0)
#     optional per-head RMS norm of q and k, rotary embedding on the first rotary_dim values, K and V into the cache
# paged_attention(q[T,Hq,D], layer_cache, block_tables[S,max_blocks], context_lens[S], query_start[S+1], out[T,Hq,D],
#     scale, block_size=16, sliding_window=0, softcap=0.0, sinks=None [Hq] f32)
#     causal, bottom-right aligned: query i of a sequence with q queries and context L sees keys j <= L - q + i;
#     sliding_window w > 0: also j > L - q + i - w. Covers decode (one query) and prefill/extend alike.
# copy_blocks(kv_cache, pairs[n,2] int64 (source, target))
# linear(x[T,K], weight[N,K], bias=None [N], out=None, residual=None [T,N]) -> Tensor
#     out = x @ weight.T (+ bias) (+ residual); weights streamed once for small T
# rms_norm(x[T,H], weight[H], eps, out=None, residual=None, offset=0.0) -> Tensor
#     with residual: residual += x in place, then norm of the sum; weight is offset + weight
# layer_norm(x[T,H], weight, bias|None, eps, out=None, residual=None) -> Tensor
# act_and_mul(x[T,2I], kind: "silu" | "gelu" | "gelu_tanh", out=None) -> Tensor   (first half is the gate)
# sample(logits[B,V] f32, SamplingTensors) -> (tokens[B] int64, logprobs[B] f32)   see sampling section
