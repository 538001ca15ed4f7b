// A client of RelaySync made by gRPC for Node from the published .proto files alone.
//
// Arguments: folder of the .proto files, address, namespace in hex. Prints one JSON object.
import grpc from '@grpc/grpc-js'
import loader from '@grpc/proto-loader'

const [folder, address, namespace] = process.argv.slice(2)
const options = { keepCase: true, longs: Number, bytes: Buffer, defaults: true, includeDirs: [folder] }
const files = ['luxrelay/sync/rpc/relay_sync.proto', 'luxrelay/sync/rpc/relay_node.proto']
const contract = grpc.loadPackageDefinition(loader.loadSync(files, options)).lux.relay.v1
const sync = new contract.RelaySync(address, grpc.credentials.createInsecure())
const node = new contract.RelayNode(address, grpc.credentials.createInsecure())
const namespace_id = Buffer.from(namespace, 'hex')
const deadline = () => new Date(Date.now() + 10_000)

const unary = (service, name, request) => new Promise((done, failed) =>
  service[name](request, { deadline: deadline() }, (error, answer) => (error ? failed(error) : done(answer))))
const stream = (name, request) => new Promise((done, failed) => {
  const frames = []
  sync[name](request, { deadline: deadline() })
    .on('data', frame => frames.push(frame)).on('error', failed).on('end', () => done(frames))
})
const sequences = messages => messages.map(each => Number(each.header.readBigUInt64BE(22)))

const plain = await stream('SyncNamespace', { namespace_id, from_seq: 2, max_messages: 5 })
const grouped = await stream('SyncNamespace', { lanes: [{ namespace_id, from_seq: 6 }], max_frame_messages: 100 })
const head = await unary(sync, 'GetNamespaceHead', { namespace_id })
const heads = await stream('ListHeads', {})
const held = await stream('ListHeld', {})
const published = await new Promise((done, failed) => {
  const call = node.Publish({ deadline: deadline() })
  call.on('data', done).on('error', failed)
  call.write({ items: [{ header: plain[0].header, blob: plain[0].blob_data }] })
  call.end()
})
const refused = await unary(sync, 'GetNamespaceHead', { namespace_id: Buffer.from('00', 'hex') })
  .then(() => 'OK', error => grpc.status[error.code])

console.log(JSON.stringify({
  plain: sequences(plain.filter(each => each.header.length)),
  status: plain.at(-1).status,
  grouped: sequences(grouped.flatMap(frame => frame.batch).filter(each => each.header.length)),
  latest: head.latest_seq,
  heads: heads.length,
  steps: held[0].steps,
  verdict: published.receipts[0].verdict,
  refused,
}))
process.exit(0)
