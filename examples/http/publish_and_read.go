// Publish to a node's gateway and read the lane back, with the standard library alone (Go 1.24).
package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha3"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"time"
)

func call(method, path string, body, said any) {
	var sent bytes.Buffer
	if body != nil {
		json.NewEncoder(&sent).Encode(body)
	}
	request, err := http.NewRequest(method, "http://"+os.Getenv("GATEWAY")+path, &sent)
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		var problem struct{ Code, Detail string }
		json.NewDecoder(answer.Body).Decode(&problem)
		log.Fatalf("%s: %s", problem.Code, problem.Detail)
	}
	if err := json.NewDecoder(answer.Body).Decode(said); err != nil {
		log.Fatal(err)
	}
}

func raw(text string) []byte {
	value, err := hex.DecodeString(text[2:])
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func field(value []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(value))), value...)
}

func main() {
	var topic struct{ NamespaceId string }
	var policy struct{ PolicyHashes []string }
	var head struct{ LatestSeq uint64 }
	call("GET", "/v1/topics?content_topic="+url.QueryEscape(os.Args[1]), nil, &topic)
	call("GET", "/v1/namespaces/"+topic.NamespaceId+"/policy", nil, &policy)

	// The sender's own lane of the namespace, and its next sequence (LP-6411 §1.2, §2.8; J6).
	public, private, _ := ed25519.GenerateKey(nil)
	key := append([]byte{1}, public...)
	derived := sha3.Sum256(append(append([]byte("lux.ns.derived.v1"), raw(topic.NamespaceId)...), key...))
	lane := hex.EncodeToString(derived[:20])
	call("GET", "/v1/namespaces/"+lane, nil, &head)
	blob := []byte("hello from Go")
	commitment := sha3.Sum256(blob)
	signed := append([]byte{1, 0}, derived[:20]...)
	signed = binary.BigEndian.AppendUint64(signed, head.LatestSeq+1)
	signed = binary.BigEndian.AppendUint64(signed, uint64(time.Now().UnixMilli()))
	signed = append(signed, commitment[:]...)
	signed = binary.BigEndian.AppendUint32(signed, uint32(len(blob)))
	signed = append(signed, raw(policy.PolicyHashes[0])...)
	hash := sha3.Sum256(signed)
	header := append(signed, field(key)...)
	header = append(header, field(ed25519.Sign(private, hash[:]))...)
	header = append(header, field([]byte{0})...)

	message := map[string]any{"header": hex.EncodeToString(header), "blob": blob, "parentId": topic.NamespaceId}
	var published struct{ Receipts []struct{ Stored bool } }
	call("POST", "/v1/messages", map[string]any{"messages": []any{message}}, &published)
	fmt.Println("stored", published.Receipts[0].Stored)

	var page struct {
		Messages []struct {
			Header struct{ Seq uint64 }
			Blob   string
		}
	}
	call("GET", "/v1/namespaces/"+lane+"/messages?after_seq=0", nil, &page)
	for _, each := range page.Messages {
		text, _ := base64.StdEncoding.DecodeString(each.Blob)
		fmt.Println(each.Header.Seq, string(text))
	}
}
