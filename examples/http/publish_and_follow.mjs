// Publish to a node's gateway and follow the topic: replay first, then live. No packages needed;
// Node 22 and browsers have WebSocket, Node 20 with --experimental-websocket.
import { createHash, generateKeyPairSync, sign } from "node:crypto";

const { GATEWAY, TOKEN } = process.env;
const sha3 = (...parts) => createHash("sha3-256").update(Buffer.concat(parts)).digest();
const headers = { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" };
const call = async (path, more = {}) => {
  const answer = await fetch(`http://${GATEWAY}${path}`, { headers, ...more });
  const said = await answer.json();
  if (!answer.ok) throw new Error(`${said.code}: ${said.detail}`);
  return said;
};

const topic = await call(`/v1/topics?content_topic=${encodeURIComponent(process.argv[2])}`);
const parent = Buffer.from(topic.namespaceId.slice(2), "hex");
const policy = await call(`/v1/namespaces/${topic.namespaceId}/policy`);

// The sender's own lane of the namespace, and its next sequence (LP-6411 §1.2, §2.8; J6).
const { publicKey, privateKey } = generateKeyPairSync("ed25519");
const key = Buffer.concat([Buffer.from([1]), publicKey.export({ type: "spki", format: "der" }).subarray(-32)]);
const lane = sha3(Buffer.from("lux.ns.derived.v1"), parent, key).subarray(0, 20);
const head = await call(`/v1/namespaces/${lane.toString("hex")}`);
const blob = Buffer.from("hello from JavaScript");
const signed = Buffer.alloc(106);
signed[0] = 1; // version; signed[1] are flags
lane.copy(signed, 2);
signed.writeBigUInt64BE(BigInt(head.latestSeq) + 1n, 22);
signed.writeBigUInt64BE(BigInt(Date.now()), 30);
sha3(blob).copy(signed, 38);
signed.writeUInt32BE(blob.length, 70);
Buffer.from(policy.policyHashes[0].slice(2), "hex").copy(signed, 74);
const field = (bytes) => Buffer.concat([Buffer.from([bytes.length >> 8, bytes.length & 255]), bytes]);
const header = Buffer.concat([signed, field(key), field(sign(null, sha3(signed), privateKey)), field(Buffer.from([0]))]);

const message = { header: header.toString("hex"), blob: blob.toString("base64"), parentId: topic.namespaceId };
const { receipts } = await call("/v1/messages", { method: "POST", body: JSON.stringify({ messages: [message] }) });
console.log(receipts[0].stored ? "stored" : receipts[0].reason);

const socket = new WebSocket(`ws://${GATEWAY}/v1/stream`, ["luxrelay.v1", `luxrelay.token.${TOKEN}`]);
socket.onopen = () => socket.send(JSON.stringify({ type: "subscribe", namespaces: [topic.namespaceId] }));
socket.onmessage = (event) => {
  const said = JSON.parse(event.data);
  if (said.type === "error") throw new Error(said.problem.detail);
  if (said.type !== "message" || said.blob === null) return;
  console.log(said.header.seq, Buffer.from(said.blob, "base64").toString());
  if (said.header.namespaceId === "0x" + lane.toString("hex")) socket.close();
};
