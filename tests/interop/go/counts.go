package main

import (
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// Counts listens to gossipsub: its mesh, its peers' protocols, and control entries both ways.
type Counts struct {
	mu        sync.Mutex
	mesh      map[string]map[peer.ID]bool
	protocols map[peer.ID]protocol.ID
	received  map[string]int
	sent      map[string]int
}

func newCounts() *Counts {
	return &Counts{
		mesh:      map[string]map[peer.ID]bool{},
		protocols: map[peer.ID]protocol.ID{},
		received:  map[string]int{},
		sent:      map[string]int{},
	}
}

func (c *Counts) locked(work func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	work()
}

func tally(into map[string]int, control *pb.ControlMessage) {
	if control == nil {
		return
	}
	into["graft"] += len(control.Graft)
	into["prune"] += len(control.Prune)
	into["ihave"] += len(control.Ihave)
	into["iwant"] += len(control.Iwant)
	for _, entry := range control.Idontwant {
		into["idontwant"] += len(entry.MessageIDs)
	}
}

func (c *Counts) OnNewOutboundStream(p peer.ID, proto protocol.ID) {
	c.locked(func() { c.protocols[p] = proto })
}

// OnClosedOutboundStream is all that is told of a peer that left; gossipsub traces no prune for it.
func (c *Counts) OnClosedOutboundStream(p peer.ID) {
	c.locked(func() {
		delete(c.protocols, p)
		for _, peers := range c.mesh {
			delete(peers, p)
		}
	})
}

func (c *Counts) Join(topic string) {
	c.locked(func() { c.mesh[topic] = map[peer.ID]bool{} })
}

func (c *Counts) Leave(topic string) { c.locked(func() { delete(c.mesh, topic) }) }

func (c *Counts) Graft(p peer.ID, topic string) {
	c.locked(func() {
		if c.mesh[topic] != nil {
			c.mesh[topic][p] = true
		}
	})
}

func (c *Counts) Prune(p peer.ID, topic string) {
	c.locked(func() { delete(c.mesh[topic], p) })
}

func (c *Counts) RecvRPC(rpc *pubsub.RPC) { c.locked(func() { tally(c.received, rpc.Control) }) }

func (c *Counts) SendRPC(rpc *pubsub.RPC, _ peer.ID) {
	c.locked(func() { tally(c.sent, rpc.Control) })
}

func (c *Counts) SendRPCCompleted(*pubsub.RPC, peer.ID, time.Duration) {}
func (c *Counts) DropRPC(*pubsub.RPC, peer.ID)                         { c.locked(func() { c.sent["dropped"]++ }) }
func (c *Counts) ValidateMessage(*pubsub.Message)                      {}
func (c *Counts) DeliverMessage(*pubsub.Message)                       {}
func (c *Counts) RejectMessage(*pubsub.Message, string)                {}
func (c *Counts) DuplicateMessage(*pubsub.Message)                     {}
func (c *Counts) ThrottlePeer(peer.ID)                                 {}
func (c *Counts) UndeliverableMessage(*pubsub.Message)                 { c.locked(func() { c.sent["undelivered"]++ }) }

// snapshot is the state as the line protocol's `stats` gives it.
func (c *Counts) snapshot() map[string]any {
	mesh := map[string][]string{}
	protocols := map[string]string{}
	received, sent := map[string]int{}, map[string]int{}
	c.locked(func() {
		for topic, peers := range c.mesh {
			mesh[topic] = []string{}
			for p := range peers {
				mesh[topic] = append(mesh[topic], p.String())
			}
		}
		for p, proto := range c.protocols {
			protocols[p.String()] = string(proto)
		}
		for key, value := range c.received {
			received[key] = value
		}
		for key, value := range c.sent {
			sent[key] = value
		}
	})
	return map[string]any{"mesh": mesh, "protocols": protocols, "received": received, "sent": sent}
}
