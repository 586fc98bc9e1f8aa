"""The core's promises one by one, on a toy executor."""


def test_submit_chunk_decode_finish(make, toy):
    drive = make({"max_num_batched_tokens": 64})
    drive.submit(*(toy.request(str(i), toy.prompt(150 + i, i)) for i in range(3)))
    drive.run()
    drive.check_outputs("0", "1", "2")
    assert max(plan.tokens for plan in drive.plans) <= 64
    assert sum(plan.tokens for plan in drive.plans if plan.decodes and plan.tokens > plan.decodes) > 0
    assert drive.core.snapshot().referenced_blocks == 0
