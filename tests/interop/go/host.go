package main

import (
	"bytes"
	"context"
	"crypto/sha3"
	"encoding/binary"
	"encoding/hex"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/sec"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"
)

// Mesh is the degrees of a mesh; all zero means that the peer keeps none and lives on gossip.
type Mesh struct {
	D    int `json:"d"`
	DLo  int `json:"dLo"`
	DHi  int `json:"dHi"`
	DOut int `json:"dOut"`
}

// Config is what a peer is started with.
type Config struct {
	Seed         string   `json:"seed"`
	Protocols    []string `json:"protocols"`
	HeartbeatMs  int      `json:"heartbeatMs"`
	Mesh         *Mesh    `json:"mesh"`
	FloodPublish *bool    `json:"floodPublish"`
	BackoffMs    int      `json:"backoffMs"`
	Signed       bool     `json:"signed"`
	Queue        int      `json:"queue"`
}

const (
	slotAt    = 2  // version and flags of the header come first
	slotBytes = 28 // namespace id and sequence number
)

// envelope says whether the bytes are shaped like an envelope; all else has no id.
func envelope(data []byte) bool {
	return len(data) >= 48 && len(data) <= 66_000 && data[0] == 1
}

// messageID is that of LP-6420 §4.3: SHA3-256 of the slot or of the payload's first hash.
func messageID(data []byte) string {
	if !envelope(data) {
		sum := sha3.Sum256(data)
		return string(sum[:])
	}
	payload := 4 + int(binary.BigEndian.Uint16(data[2:])) + 4
	start, end := payload, payload+32
	if data[1] == 1 || data[1] == 4 {
		start = payload + 2 + slotAt
		end = start + slotBytes
	}
	if end > len(data) {
		sum := sha3.Sum256(data)
		return string(sum[:])
	}
	sum := sha3.Sum256(data[start:end])
	return string(sum[:])
}

// newHost is a go-libp2p host with TCP, Noise and Yamux, on a port of the system's choice. It is
// put together by hand: the ready-made constructor compiles QUIC and WebRTC too, for minutes.
func newHost(seed string) (host.Host, error) {
	raw, err := hex.DecodeString(seed)
	if err != nil {
		return nil, err
	}
	key, _, err := crypto.GenerateEd25519Key(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, err
	}
	store, err := pstoremem.NewPeerstore()
	if err != nil {
		return nil, err
	}
	if err := store.AddPrivKey(id, key); err != nil {
		return nil, err
	}
	if err := store.AddPubKey(id, key.GetPublic()); err != nil {
		return nil, err
	}
	bus := eventbus.NewBus()
	network, err := swarm.NewSwarm(id, store, bus)
	if err != nil {
		return nil, err
	}
	muxers := []upgrader.StreamMuxer{{ID: yamux.ID, Muxer: yamux.DefaultTransport}}
	security, err := noise.New(noise.ID, key, muxers)
	if err != nil {
		return nil, err
	}
	upgrade, err := upgrader.New([]sec.SecureTransport{security}, muxers, nil, nil, nil)
	if err != nil {
		return nil, err
	}
	transport, err := tcp.NewTCPTransport(upgrade, nil, nil)
	if err != nil {
		return nil, err
	}
	if err := network.AddTransport(transport); err != nil {
		return nil, err
	}
	if err := network.Listen(multiaddr.StringCast("/ip4/127.0.0.1/tcp/0")); err != nil {
		return nil, err
	}
	h, err := basichost.NewHost(network, &basichost.HostOpts{EventBus: bus, EnablePing: true})
	if err != nil {
		return nil, err
	}
	h.Start()
	return h, nil
}

// newPubSub is gossipsub set up the way LuxRelay's mesh needs it (decision G29).
func newPubSub(ctx context.Context, h host.Host, config Config, counts *Counts) (*pubsub.PubSub, error) {
	params := pubsub.DefaultGossipSubParams()
	if config.HeartbeatMs > 0 {
		params.HeartbeatInterval = time.Duration(config.HeartbeatMs) * time.Millisecond
	}
	if config.BackoffMs > 0 {
		params.UnsubscribeBackoff = time.Duration(config.BackoffMs) * time.Millisecond
	}
	if m := config.Mesh; m != nil {
		params.D, params.Dlo, params.Dhi, params.Dout, params.Dscore = m.D, m.DLo, m.DHi, m.DOut, m.D
	}
	options := []pubsub.Option{pubsub.WithGossipSubParams(params)}
	if config.Signed {
		options = append(options, pubsub.WithMessageSignaturePolicy(pubsub.StrictSign))
	} else {
		options = append(options,
			pubsub.WithMessageSignaturePolicy(pubsub.StrictNoSign),
			pubsub.WithNoAuthor(),
			pubsub.WithMessageIdFn(func(m *pb.Message) string { return messageID(m.Data) }))
	}
	if config.Queue > 0 {
		options = append(options,
			pubsub.WithPeerOutboundQueueSize(config.Queue),
			pubsub.WithValidateQueueSize(config.Queue),
			pubsub.WithValidateThrottle(config.Queue))
	}
	if config.FloodPublish != nil {
		options = append(options, pubsub.WithFloodPublish(*config.FloodPublish))
	}
	if len(config.Protocols) > 0 {
		var protocols []protocol.ID
		for _, text := range config.Protocols {
			protocols = append(protocols, protocol.ID(text))
		}
		options = append(options, pubsub.WithGossipSubProtocols(protocols, pubsub.GossipSubDefaultFeatures))
	}
	if counts != nil {
		options = append(options, pubsub.WithRawTracer(counts))
	}
	return pubsub.NewGossipSub(ctx, h, options...)
}
