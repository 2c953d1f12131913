# An example, in plain Python: which letter follows which. Your own script takes its place.
import argparse, math, random, time

parser = argparse.ArgumentParser()
for option, kind in {"--seq": int, "--bs": int, "--steps": int, "--lr": float}.items():
    parser.add_argument(option, type=kind, required=True)
args = parser.parse_args()

random.seed(1234)
letters = 32
weights = [[0.0] * letters for _ in range(letters)]
for step in range(1, args.steps + 1):
    began, loss, tokens = time.perf_counter(), 0.0, args.bs * args.seq
    for _ in range(tokens):
        letter = random.randrange(letters)
        follows = (5 * letter + random.choice([3, 3, 3, 7])) % letters
        row = weights[letter]
        odds = [math.exp(weight) for weight in row]
        total = sum(odds)
        loss -= math.log(odds[follows] / total) / tokens
        for other in range(letters):
            row[other] -= args.lr * (odds[other] / total - (other == follows))
    rate = tokens / (time.perf_counter() - began)
    print(f"step {step} loss {loss:.4f} tokens/s {rate:.0f}", flush=True)
