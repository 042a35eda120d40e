"""Uses Prime's own client: sandboxes, commands, live processes, files, the network."""

import asyncio
import json
import pathlib
import tempfile

from prime_sandboxes import APIClient, AsyncSandboxClient, CreateSandboxRequest, SandboxClient

out = {}
client = SandboxClient(APIClient())
made = client.create(CreateSandboxRequest(name="mine", docker_image="debian:bookworm", labels=["job a"], idle_timeout_minutes=5))
out["id"] = made.id
client.wait_for_creation(made.id)

run = client.execute_command(made.id, "printf out; printf err >&2")
out["run"] = [run.exit_code, run.stdout, run.stderr]
out["exit"] = client.execute_command(made.id, "exit 7").exit_code
home = client.execute_command(made.id, "echo $HOME").stdout.strip()
client._auth_cache.set(made.id, {**client._auth_cache.get_or_refresh(made.id), "token": "stale"})
out["stale"] = client.execute_command(made.id, "echo again").stdout

upload = client.upload_bytes(made.id, home + "/dir/a.txt", b"hello", "a.txt")
out["upload"] = [upload.success, upload.size]
out["read"] = client.read_file(made.id, home + "/dir/a.txt").content
with tempfile.TemporaryDirectory() as folder:
    client.download_file(made.id, home + "/dir/a.txt", folder + "/a.txt")
    out["download"] = pathlib.Path(folder, "a.txt").read_text()
try:
    client.read_file(made.id, home + "/none")
except Exception as err:
    out["none"] = type(err).__name__

policy = client.set_network(made.id, deny=["*"])
out["network"] = [policy.applied, policy.policy.allowlist, policy.policy.denylist]


async def live():
    async with AsyncSandboxClient() as aclient:
        process = await aclient.open_process(made.id, "read line; echo got $line; echo seen >&2")
        await process.write_stdin(b"input\n")
        text = [b"".join([part async for part in stream]).decode() for stream in (process.stdout, process.stderr)]
        out["live"] = [*text, await process.wait()]
        await process.aclose()
        forever = await aclient.open_process(made.id, "exec sleep 600")
        await forever.terminate()
        out["terminated"] = await forever.wait() != 0
        await forever.aclose()
        broken = await aclient.open_process(made.id, "read line; exit 4")
        print(flush=True)  # the test breaks the stream, and the client attaches again
        input()
        await broken.write_stdin(b"here\n")
        out["reconnected"] = await broken.wait()
        await broken.aclose()


asyncio.run(live())
out["list"] = [s.id for s in client.list(labels=["job a"], exclude_terminated=True).sandboxes]
out["others"] = client.list(labels=["x"]).total
out["status"] = client.get(made.id).status
out["bulk"] = client.bulk_delete(labels=["job a"]).succeeded
try:
    client.get(made.id)
except Exception as err:
    out["deleted"] = type(err).__name__
out["left"] = client.list().total
print(json.dumps(out))
