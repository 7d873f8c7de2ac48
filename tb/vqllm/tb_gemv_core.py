"""Runs inside the simulator, started by test_gemv_core.py: matrices, their vectors, a memory."""

from tb.vqllm.support.matrix_host import latency_test, matrix_tests

latency = latency_test("sum")
random_flow, uneven_flow, late_ready, reset_in_mid_matrix, full_rate = matrix_tests("sum")
