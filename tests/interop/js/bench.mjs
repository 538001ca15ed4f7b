// Measures js-libp2p's gossipsub: one process, one network on loopback, everybody connected with
// everybody. The first node publishes, in bursts of `window` that all must have before the next.
// The argument and the answer are JSON; bench/net.py reads it.
import { performance } from 'node:perf_hooks'
import { multiaddr } from '@multiformats/multiaddr'
import { startHost } from './host.mjs'

const { nodes, messages, window, size, signed, topic } = JSON.parse(process.argv[2])
const wallUs = () => Math.round((performance.timeOrigin + performance.now()) * 1000)

/** An envelope of LP-6420 with the time of its making in the announcement. */
function envelope (seq) {
  const name = Buffer.from(topic)
  const header = Buffer.alloc(size - name.length - 26)
  header[0] = 1
  header.fill(0x22, 2, 22)
  header.writeBigUInt64BE(BigInt(seq), 22)
  const payload = Buffer.concat([
    u16(header.length), header, u16(6), Buffer.from('source'), u64(wallUs()), u16(0)
  ])
  return Buffer.concat([Buffer.from([1, 1]), u16(name.length), name, u32(payload.length), payload, u16(0)])
}

const u16 = (value) => { const b = Buffer.alloc(2); b.writeUInt16BE(value); return b }
const u32 = (value) => { const b = Buffer.alloc(4); b.writeUInt32BE(value); return b }
const u64 = (value) => { const b = Buffer.alloc(8); b.writeBigUInt64BE(BigInt(value)); return b }

const peers = []
for (let number = 0; number < nodes; number++) {
  const seed = Buffer.alloc(32, number + 1).toString('hex')
  peers.push(await startHost({ seed, signed, floodPublish: false, buffer: 64 * 1024 * 1024 }))
}
let delivered = 0
let wanted = Infinity
let arrived = () => {}
const latencies = []
for (const [number, { pubsub }] of peers.entries()) {
  pubsub.subscribe(topic)
  if (number === 0) continue
  pubsub.addEventListener('message', ({ detail }) => {
    const { data } = detail
    const at = data.byteLength - 2 - 2 - 8
    latencies.push(wallUs() - Number(Buffer.from(data.buffer, data.byteOffset + at, 8).readBigUInt64BE()))
    if (++delivered === wanted) arrived()
  })
}
for (const [number, { host }] of peers.entries()) {
  for (const other of peers.slice(number + 1)) await host.dial(multiaddr(String(other.host.getMultiaddrs()[0])))
}
const degree = Math.min(nodes - 1, 4)
while (!peers.every(({ pubsub }) => (pubsub.mesh.get(topic)?.size ?? 0) >= degree)) {
  await new Promise((resolve) => setTimeout(resolve, 50))
}

let seq = 0
const STUCK_MS = 5000 // without any arrival the rest of a window counts as lost

/** Publishes and waits; the milliseconds that were waited for messages that never came. */
async function run (count) {
  let lost = 0
  for (let sent = 0; sent < count; sent += window) {
    const burst = Math.min(window, count - sent)
    const done = new Promise((resolve) => { arrived = () => resolve(true) })
    wanted = delivered + burst * (nodes - 1)
    for (let i = 0; i < burst; i++) await peers[0].pubsub.publish(topic, envelope(seq++))
    for (let seen = -1; seen !== delivered && delivered < wanted;) {
      seen = delivered
      const here = await Promise.race([done, new Promise((resolve) => setTimeout(resolve, STUCK_MS))])
      if (here !== true && seen === delivered) lost += STUCK_MS
    }
  }
  return lost
}

await run(Math.min(messages, 4 * window))
latencies.length = 0
const cpu = process.cpuUsage()
const began = performance.now()
const lost = await run(messages)
const seconds = (performance.now() - began - lost) / 1000
const used = process.cpuUsage(cpu)
latencies.sort((a, b) => a - b)
const at = (share) => latencies[Math.floor(share * (latencies.length - 1))]
console.log(JSON.stringify({
  messages_per_s: latencies.length / (nodes - 1) / seconds,
  delivered: latencies.length / (messages * (nodes - 1)),
  cpu_ms: (used.user + used.system) / 1000 / messages,
  p50_ms: at(0.5) / 1000,
  p99_ms: at(0.99) / 1000
}))
process.exit(0)
