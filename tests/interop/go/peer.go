// A go-libp2p-pubsub peer that is told what to do on stdin and answers on stdout, one JSON object a
// line; ../README.md has the protocol.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Command is one line of input.
type Command struct {
	ID       int      `json:"id"`
	Do       string   `json:"do"`
	Topic    string   `json:"topic"`
	Address  string   `json:"address"`
	Peer     string   `json:"peer"`
	Messages []string `json:"messages"`
}

// Peer is one host in the mesh.
type Peer struct {
	ctx    context.Context
	host   host.Host
	pubsub *pubsub.PubSub
	counts *Counts
	topics map[string]*pubsub.Topic
	stop   map[string]context.CancelFunc
	out    sync.Mutex
}

func (p *Peer) say(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	p.out.Lock()
	defer p.out.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func (p *Peer) topic(name string) (*pubsub.Topic, error) {
	if topic := p.topics[name]; topic != nil {
		return topic, nil
	}
	err := p.pubsub.RegisterTopicValidator(name,
		func(_ context.Context, from peer.ID, m *pubsub.Message) pubsub.ValidationResult {
			if envelope(m.Data) || from == p.host.ID() { // what a test publishes may be bad
				return pubsub.ValidationAccept
			}
			return pubsub.ValidationReject
		})
	if err != nil {
		return nil, err
	}
	topic, err := p.pubsub.Join(name)
	if err == nil {
		p.topics[name] = topic
	}
	return topic, err
}

func (p *Peer) subscribe(name string) error {
	topic, err := p.topic(name)
	if err != nil {
		return err
	}
	subscription, err := topic.Subscribe(pubsub.WithBufferSize(65_536))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(p.ctx)
	p.stop[name] = func() { cancel(); subscription.Cancel() }
	go func() {
		for {
			message, err := subscription.Next(ctx)
			if err != nil {
				return
			}
			if message.ReceivedFrom == p.host.ID() {
				continue
			}
			id := hex.EncodeToString([]byte(messageID(message.Data)))
			p.say(map[string]any{"event": "messages", "ids": []string{id}})
		}
	}()
	return nil
}

func (p *Peer) publish(name string, messages []string) error {
	topic, err := p.topic(name)
	if err != nil {
		return err
	}
	for _, text := range messages {
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return err
		}
		if err := topic.Publish(p.ctx, data); err != nil {
			return err
		}
	}
	return nil
}

func (p *Peer) do(command Command) (map[string]any, error) {
	switch command.Do {
	case "subscribe":
		return nil, p.subscribe(command.Topic)
	case "unsubscribe":
		p.stop[command.Topic]()
		delete(p.stop, command.Topic)
		return nil, nil
	case "dial":
		info, err := peer.AddrInfoFromString(command.Address)
		if err != nil {
			return nil, err
		}
		return nil, p.host.Connect(p.ctx, *info)
	case "hangup":
		id, err := peer.Decode(command.Peer)
		if err != nil {
			return nil, err
		}
		return nil, p.host.Network().ClosePeer(id)
	case "publish":
		return nil, p.publish(command.Topic, command.Messages)
	case "stats":
		answer := p.counts.snapshot()
		peers := []string{}
		for _, id := range p.host.Network().Peers() {
			peers = append(peers, id.String())
		}
		answer["peers"] = peers
		return answer, nil
	}
	return nil, fmt.Errorf("no command %q", command.Do)
}

func runPeer(config Config) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, err := newHost(config.Seed)
	if err != nil {
		return err
	}
	defer h.Close()
	counts := newCounts()
	ps, err := newPubSub(ctx, h, config, counts)
	if err != nil {
		return err
	}
	p := &Peer{
		ctx: ctx, host: h, pubsub: ps, counts: counts,
		topics: map[string]*pubsub.Topic{}, stop: map[string]context.CancelFunc{},
	}
	addresses := []string{}
	for _, address := range h.Addrs() {
		addresses = append(addresses, fmt.Sprintf("%s/p2p/%s", address, h.ID()))
	}
	p.say(map[string]any{"event": "ready", "peer": h.ID().String(), "addresses": addresses})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64*1024*1024)
	for lines.Scan() {
		var command Command
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			return err
		}
		answer, err := p.do(command)
		if answer == nil {
			answer = map[string]any{}
		}
		answer["answer"] = command.ID
		if err != nil {
			answer["error"] = err.Error()
		}
		p.say(answer)
	}
	return lines.Err()
}

func run(arguments []string) error {
	if len(arguments) == 2 && arguments[0] == "bench" {
		var bench Bench
		if err := json.Unmarshal([]byte(arguments[1]), &bench); err != nil {
			return err
		}
		return runBench(bench)
	}
	if len(arguments) != 1 {
		return errors.New("usage: peer CONFIG | peer bench CONFIG")
	}
	var config Config
	if err := json.Unmarshal([]byte(arguments[0]), &config); err != nil {
		return err
	}
	return runPeer(config)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
