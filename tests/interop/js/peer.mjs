// A js-libp2p gossipsub peer that is told what to do on stdin and answers on stdout, one JSON
// object a line; ../README.md has the protocol.
import { createInterface } from 'node:readline'
import { multiaddr } from '@multiformats/multiaddr'
import { peerIdFromString } from '@libp2p/peer-id'
import { isEnvelope, messageId } from './envelope.mjs'
import { startHost } from './host.mjs'

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')
const config = JSON.parse(process.argv[2])
const { host, pubsub, counts } = await startHost({ ...config, counted: true })

let arrived = []
pubsub.addEventListener('message', ({ detail }) => {
  if (arrived.length === 0) {
    setImmediate(() => { say({ event: 'messages', ids: arrived }); arrived = [] })
  }
  arrived.push(messageId(detail.data).toString('hex'))
})

const received = (kind) => counts[`gossipsub_rpc_recv_${kind}_total`] ?? 0
const sent = (kind) => counts[`gossipsub_rpc_sent_${kind}_total`] ?? 0

const commands = {
  subscribe: ({ topic }) => {
    pubsub.topicValidators.set(topic, (_peer, { data }) => isEnvelope(data) ? 'accept' : 'reject')
    pubsub.subscribe(topic)
  },
  unsubscribe: ({ topic }) => pubsub.unsubscribe(topic),
  dial: async ({ address }) => { await host.dial(multiaddr(address)) },
  hangup: async ({ peer }) => { await host.hangUp(peerIdFromString(peer)) },
  publish: async ({ topic, messages }) => {
    for (const text of messages) await pubsub.publish(topic, Buffer.from(text, 'base64'))
  },
  stats: () => ({
    peers: host.getPeers().map(String),
    protocols: Object.fromEntries([...pubsub.streamsOutbound].map(([id, stream]) => [id, stream.protocol])),
    mesh: Object.fromEntries([...pubsub.mesh].map(([topic, peers]) => [topic, [...peers]])),
    received: {
      graft: received('graft'),
      prune: received('prune'),
      ihave: received('ihave'),
      iwant: received('iwant'),
      idontwant: counts.gossipsub_idontwant_rcv_msgids_total ?? 0
    },
    sent: {
      graft: sent('graft'),
      prune: sent('prune'),
      ihave: sent('ihave'),
      iwant: sent('iwant'),
      idontwant: sent('idontwant')
    }
  })
}

say({ event: 'ready', peer: host.peerId.toString(), addresses: host.getMultiaddrs().map(String) })
for await (const line of createInterface({ input: process.stdin })) {
  const { id, do: name, ...rest } = JSON.parse(line)
  try {
    say({ answer: id, ...(await commands[name](rest)) })
  } catch (error) {
    say({ answer: id, error: `${error.name}: ${error.message}` })
  }
}
await host.stop()
process.exit(0)
