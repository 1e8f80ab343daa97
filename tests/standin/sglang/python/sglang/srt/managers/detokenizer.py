"""The detokenizer: token ids in, words out, one JSON object a line."""
import json
import sys

if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        message["text"] = "".join(f"w{token} " for token in message.pop("tokens", []))
        print(json.dumps(message), flush=True)
