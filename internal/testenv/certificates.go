package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
)

// Certificates makes an authority in a folder, ca.pem, with the certificates of a server
// on 127.0.0.1 (server.pem, server-key.pem) and of a client, as Docker names it (cert.pem,
// key.pem).
func Certificates(t testing.TB, dir string) {
	t.Helper()
	write := func(name, kind string, data []byte) {
		harness.Must(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
	}
	sign := func(serial int64, name string, by *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		harness.Must(t, err)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		if by == nil {
			c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
			by, key = c, own
		}
		der, err := x509.CreateCertificate(rand.Reader, c, by, own.Public(), key)
		harness.Must(t, err)
		made, err := x509.ParseCertificate(der)
		harness.Must(t, err)
		write(name+".pem", "CERTIFICATE", der)
		secret, err := x509.MarshalPKCS8PrivateKey(own)
		harness.Must(t, err)
		write(strings.Replace(name+"-key.pem", "cert-key", "key", 1), "PRIVATE KEY", secret)
		return made, own
	}
	ca, key := sign(1, "ca", nil, nil)
	sign(2, "server", ca, key)
	sign(3, "cert", ca, key)
}
