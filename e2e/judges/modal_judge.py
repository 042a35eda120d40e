"""Uses the official client of Modal: apps, images, sandboxes, commands, tags."""

import json

import modal

out = {}
app = modal.App.lookup("judge", create_if_missing=True)
image = modal.Image.from_registry("debian:bookworm")
sb = modal.Sandbox.create(app=app, image=image, timeout=300, idle_timeout=60, cpu=1.5, memory=512, block_network=True, runtime="vm", tags={"job": "a.b-c_d"})
out["id"] = sb.object_id

run = sb.exec("sh", "-c", "printf out; printf err >&2; echo $GREETING; exit 7", env={"GREETING": "hi"})
out["run"] = [run.stdout.read(), run.stderr.read(), run.wait()]

lines = sb.exec("sh", "-c", "while read line; do echo got $line; done; echo end")
out["poll"] = lines.poll()
for word in ["one", "two"]:
    lines.stdin.write(word + "\n")
    lines.stdin.drain()
lines.stdin.write_eof()
lines.stdin.drain()
out["lines"] = [lines.stdout.read(), lines.wait(), lines.poll()]

data = bytes(range(256)) * 4096
echo = sb.exec("cat", text=False)
echo.stdin.write(data)
echo.stdin.write_eof()
echo.stdin.drain()
out["binary"] = echo.stdout.read() == data
out["killed"] = sb.exec("sh", "-c", "kill -9 $$").wait()
out["none"] = sb.exec("no-such-program").wait()

out["tags"] = sb.get_tags()
out["listed"] = [s.object_id for s in modal.Sandbox.list(app_id=app.app_id, tags={"job": "a.b-c_d"})]
out["others"] = len(list(modal.Sandbox.list(app_id=app.app_id, tags={"job": "x"})))
again = modal.Sandbox.from_id(sb.object_id)
out["again"] = again.exec("echo", "again").stdout.read()
out["running"] = again.poll()

try:
    modal.App.lookup("missing")
except modal.exception.NotFoundError:
    out["missing"] = "NotFoundError"
try:
    modal.Sandbox.create(app=app, image=modal.Image.from_registry("other:1"))
except Exception as e:
    out["image"] = type(e).__name__

sb.terminate()
out["ended"] = again.poll()
out["left"] = len(list(modal.Sandbox.list(app_id=app.app_id)))
print(json.dumps(out))
