"""sqkernels: Triton kernels for in-place eviction and for the scores of heuristic baselines. Needs torch and triton only.

One noun a file, one public function each, a plain torch reference beside it. From the ground up:

errors, launch, checks     refusals by name; the one door through which kernels run
rows, spans, buffers       a page table's rows; spans of positions; KV buffers
compact, compact_mask      dropped slots out of rows, in place: by spans, by a keep mask
moves, pages, shift        KV rows to other slots: disjoint, fewest for whole pages, in order
"""
