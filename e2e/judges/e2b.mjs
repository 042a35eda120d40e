// Uses the official client of E2B: sandboxes, commands, files, URLs of files.
import { Sandbox, CommandExitError } from "e2b";

const out = {};
const sbx = await Sandbox.create("base", { timeoutMs: 60_000, metadata: { job: "a b&c=d" }, envs: { GREETING: "hi" } });
out.id = sbx.sandboxId;

const run = await sbx.commands.run("printf out; printf err >&2; pwd", { timeoutMs: 20_000 });
out.run = [run.exitCode, run.stdout.slice(0, 3), run.stderr];
const home = run.stdout.slice(3).trim();
try { await sbx.commands.run("exit 7"); } catch (e) { out.exit = e instanceof CommandExitError ? e.exitCode : String(e); }
try { await sbx.commands.run("sleep 60", { timeoutMs: 500 }); } catch (e) { out.timeout = e.constructor.name; }

const background = await sbx.commands.run("read line; echo got $line", { background: true, stdin: true });
out.listed = (await sbx.commands.list()).some((p) => p.pid === background.pid);
await sbx.commands.sendStdin(background.pid, "input\n");
out.background = (await background.wait()).stdout;
const forever = await sbx.commands.run("exec sleep 600", { background: true });
out.killed = await forever.kill();
try { await forever.wait(); } catch (e) { out.forever = e.constructor.name; }

await sbx.files.write("dir/a.txt", "hello");
await sbx.files.write([{ path: "dir/b.bin", data: new Uint8Array([0, 255, 10]).buffer }, { path: "dir/c.txt", data: "c" }]);
out.read = await sbx.files.read("dir/a.txt");
out.bytes = Array.from(await sbx.files.read("dir/b.bin", { format: "bytes" }));
out.names = (await sbx.files.list("dir")).map((e) => e.name + ":" + e.type).sort();
await sbx.files.rename("dir/c.txt", "dir/d.txt");
out.made = await sbx.files.makeDir("dir/sub");
out.again = await sbx.files.makeDir("dir/sub");
out.exists = [await sbx.files.exists("dir/d.txt"), await sbx.files.exists("dir/c.txt")];
out.info = (await sbx.files.getInfo("dir/a.txt")).size;
await sbx.files.remove("dir/d.txt");
out.removed = !(await sbx.files.exists("dir/d.txt"));
try { await sbx.files.read("none"); } catch (e) { out.none = e.constructor.name; }

const download = await fetch(await sbx.downloadUrl("dir/a.txt", { useSignatureExpiration: 60 }));
out.download = [download.status, await download.text()];
const form = new FormData();
form.append("file", new Blob(["up"]), "up.txt");
const upload = await fetch(await sbx.uploadUrl("dir/up.txt"), { method: "POST", body: form });
out.upload = [upload.status, await sbx.files.read("dir/up.txt")];
const forged = (await sbx.downloadUrl("dir/a.txt")).replace("a.txt", "b.bin");
out.forged = (await fetch(forged)).ok;

const pages = Sandbox.list({ query: { metadata: { job: "a b&c=d" } } });
out.list = (await pages.nextItems()).map((s) => s.sandboxId);
out.others = (await Sandbox.list({ query: { metadata: { job: "x" } } }).nextItems()).length;
await sbx.setTimeout(120_000);
const info = await sbx.getInfo();
out.left = (info.endAt - Date.now()) / 1000;
out.connected = (await (await Sandbox.connect(sbx.sandboxId)).commands.run("echo again")).stdout;
out.kill = [await sbx.kill(), await Sandbox.kill(out.id)];
out.home = home.length > 1;
console.log(JSON.stringify(out));
