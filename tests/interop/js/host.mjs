// A js-libp2p host with gossipsub, set up the way LuxRelay's mesh needs it (decision G29).
import './polyfill.mjs'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys'
import { gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { createLibp2p } from 'libp2p'
import { messageId } from './envelope.mjs'

/** Counts what gossipsub reports; everything that is no counter is taken and forgotten. */
class Counts {
  constructor () { this.totals = {} }

  gauge ({ name }) {
    const add = (value) => { this.totals[name] = (this.totals[name] ?? 0) + value }
    return {
      inc: (a, b) => add(typeof a === 'object' ? b ?? 1 : a ?? 1),
      set: () => {},
      addCollect: () => {}
    }
  }

  histogram () { return { startTimer: () => () => {}, observe: () => {}, reset: () => {} } }
  avgMinMax () { return { set: () => {} } }
}

/** Gossipsub that speaks these protocols only; its option of that name has no effect (17.1.1). */
function speaking (protocols, make) {
  return (components) => {
    const made = make(components)
    if (protocols != null) made.protocols.splice(0, Infinity, ...protocols)
    return made
  }
}

export async function startHost ({ seed, protocols, heartbeatMs, mesh, floodPublish, backoffMs, signed, counted, buffer }) {
  const counts = new Counts()
  const host = await createLibp2p({
    privateKey: await generateKeyPairFromSeed('Ed25519', Buffer.from(seed, 'hex')),
    addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    connectionGater: { denyDialMultiaddr: () => false },
    // It cuts connections whose ping is not answered within seconds, as on a busy machine.
    connectionMonitor: { enabled: false },
    // It refuses the sixth connection a second of one host, and here all peers are one host.
    connectionManager: { inboundConnectionThreshold: 1000 },
    services: {
      identify: identify(),
      ping: ping(),
      pubsub: speaking(protocols, gossipsub({
        globalSignaturePolicy: signed ? 'StrictSign' : 'StrictNoSign',
        ...(signed ? {} : { msgIdFn: ({ data }) => messageId(data) }),
        fallbackToFloodsub: false,
        maxInboundDataLength: 1024 * 1024,
        allowPublishToZeroTopicPeers: true,
        floodPublish: floodPublish ?? true,
        heartbeatInterval: heartbeatMs ?? 700,
        ...(backoffMs == null ? {} : { unsubcribeBackoff: backoffMs }), // spelled so
        ...(mesh == null ? {} : { D: mesh.d, Dlo: mesh.dLo, Dhi: mesh.dHi, Dout: mesh.dOut, Dscore: mesh.d }),
        ...(buffer == null ? {} : { maxOutboundBufferSize: buffer }),
        ...(counted ? { metricsRegister: counts, metricsTopicStrToLabel: new Map() } : {})
      }))
    }
  })
  return { host, pubsub: host.services.pubsub, counts: counts.totals }
}
