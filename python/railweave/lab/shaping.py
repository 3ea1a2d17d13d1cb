"""The settings of the shaped links. Each value comes from `benchmarks/lab_shaping.py`; its output is in docs/lab.md."""

# Always there and allowed in every namespace, whatever the host uses; with round trips of 0.1 ms nothing is lost by its simplicity.
CONGESTION_CONTROL = "reno"

# Milliseconds. A lost packet must not cost the 200 ms that suit the internet, which is as long as an exchange takes here: with
# them an incast of 16 senders of 100 ms reached 0.39 of the rate, with 5 ms all of it.
MIN_RETRANSMIT_MS = 5


def burst(rate: int, frame: int) -> int:
    """Bytes that may leave at once after a pause: 1 ms of the rate (bits per second), and at least a frame.

    So a transfer of 100 ms exceeds the rate by 1%. Less would lose rate on a busy machine, whose timers fire late; tbf drops frames that
    are larger, and holds its burst as a time in steps of about 1 us.
    """
    return max(16 * 1024, frame + rate // 8 // 500_000, rate // 8 // 1000)


def queue(rate: int) -> int:
    """Bytes that a port holds back before it drops: 5 ms of the rate.

    Enough for the full rate in an incast of 16 senders; a deeper queue only makes small messages wait longer behind large ones.
    """
    return max(256 * 1024, rate // 8 // 200)
