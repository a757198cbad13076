package tollgate_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/tollgate"
	"example.com/tollgate/internal/servertest"
)

// certificate writes a self-signed certificate for the loopback and its key, and returns the paths and the certificate.
func certificate(t *testing.T) (certPath, keyPath string, parsed *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDer, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDer), parsed
}

func TestCheck_OverTls_TrustsTheGivenAuthorityOnly(t *testing.T) {
	certPath, keyPath, trusted := certificate(t)
	server := servertest.Start(t, rules, "--grpc-tls-cert", certPath, "--grpc-tls-key", keyPath)
	authorities := x509.NewCertPool()
	authorities.AddCert(trusted)

	client := newClient(t, server.Address, tollgate.Options{TLS: &tls.Config{RootCAs: authorities}})
	if !check(t, client, request("user", "ann")).Allowed {
		t.Error("denied")
	}
	for name, options := range map[string]tollgate.Options{
		"another authority": {TLS: &tls.Config{RootCAs: x509.NewCertPool()}, OnNoAnswer: tollgate.Deny},
		"plaintext":         {OnNoAnswer: tollgate.Deny},
	} {
		decision, err := newClient(t, server.Address, options).Check(t.Context(), request("user", "bob"))
		if err != nil || decision.Allowed || decision.NoAnswer == nil {
			t.Errorf("%s: %+v %v", name, decision, err)
		}
	}
}
