// Participants of @waku/sds for `tests/interop/test_sds.py` and `bench/channel.py`: one JSON object
// a line in, one a line out. Time is what the last line with `now` said, so runs can be repeated.
import { createInterface } from "node:readline";
import { Message, MessageChannel, MessageChannelEvent } from "@waku/sds";

const hex = (bytes) => (bytes ? Buffer.from(bytes).toString("hex") : null);
const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));
const realNow = Date.now;
let virtualNow = null;
Date.now = () => virtualNow ?? realNow();

const participants = new Map();

function open({ who, channel, options }) {
  const machine = new MessageChannel(channel, who, options ?? {});
  const one = { machine, delivered: [], acknowledged: [], asked: [] };
  machine.addEventListener(MessageChannelEvent.InMessageDelivered, (e) => one.delivered.push(e.detail));
  machine.addEventListener(MessageChannelEvent.OutMessageAcknowledged, (e) => one.acknowledged.push(e.detail));
  machine.addEventListener(MessageChannelEvent.RepairRequestReceived, (e) => one.asked.push(...e.detail.messageIds));
  participants.set(who, one);
  return {};
}

const content = (machine, id) => {
  const found = machine.localHistory.find((m) => m.messageId === id);
  return found ? { id, sender: found.senderId, content: hex(found.content) } : { id };
};

async function send({ who, content: text }) {
  const { machine } = participants.get(who);
  let wire;
  machine.pushOutgoingMessage(bytes(text), async (m) => {
    wire = m.encode();
    return { success: true };
  });
  await machine.processTasks();
  return { wire: hex(wire) };
}

async function receive({ who, wire }) {
  const { machine } = participants.get(who);
  const message = Message.decode(bytes(wire));
  if (!message) return { refused: true };
  machine.pushIncomingMessage(message, undefined);
  await machine.processTasks();
  return {};
}

// What is due: waiting messages, answers to requests, unacknowledged messages, a sync message.
async function sweep({ who, resend, sync }) {
  const { machine } = participants.get(who);
  const wires = [];
  const missing = machine.sweepIncomingBuffer();
  await machine.sweepRepairIncomingBuffer(async (m) => (wires.push(m.encode()), true));
  if (resend) for (const m of machine.sweepOutgoingBuffer().unacknowledged) wires.push(m.encode());
  if (sync) await machine.pushOutgoingSyncMessage(async (m) => (wires.push(m.encode()), true));
  return { wires: wires.map(hex), missing: missing.map((e) => e.messageId) };
}

function taken({ who }) {
  const one = participants.get(who);
  const { delivered, acknowledged, asked, machine } = one;
  [one.delivered, one.acknowledged, one.asked] = [[], [], []];
  return { delivered: delivered.map((id) => content(machine, id)), acknowledged, asked };
}

function log({ who }) {
  const { machine } = participants.get(who);
  return { ids: machine.localHistory.slice(0).map((m) => m.messageId) };
}

// The core alone, timed inside: `count` messages sent, or made by one participant and received by
// another; encoding and decoding included, as on a wire.
async function bench({ kind, count, size, options }) {
  const one = new MessageChannel("bench", "one", options ?? {});
  const other = new MessageChannel("bench", "other", options ?? {});
  const made = [];
  const make = async (n) => {
    const payload = new Uint8Array(size);
    new DataView(payload.buffer).setUint32(0, n);
    one.pushOutgoingMessage(payload, async (m) => (made.push(m.encode()), { success: true }));
    await one.processTasks();
  };
  if (kind === "send") {
    const began = performance.now();
    for (let n = 0; n < count; n++) await make(n);
    return { seconds: (performance.now() - began) / 1000 };
  }
  for (let n = 0; n < count; n++) await make(n);
  let delivered = 0;
  other.addEventListener(MessageChannelEvent.InMessageDelivered, () => delivered++);
  const began = performance.now();
  for (const wire of made) {
    other.pushIncomingMessage(Message.decode(wire), undefined);
    await other.processTasks();
  }
  return { seconds: (performance.now() - began) / 1000, delivered };
}

const calls = { open, send, receive, sweep, taken, log, bench };
for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    const request = JSON.parse(line);
    if (request.now !== undefined) virtualNow = request.now;
    answer = await calls[request.do](request);
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
