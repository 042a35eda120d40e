package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// CheckTLS reads those files for TLS that this host has; others are on the server's own
// host. A certificate must fit its key. A CA file must have certificates, and a cluster's must
// have signed the server's.
func (f ServerFile) CheckTLS() error {
	authorities, err := authoritiesIn(f.CA)
	if err != nil {
		return fmt.Errorf("TLS CA: %w", err)
	}
	if !here(f.Cert) || !here(f.Key) {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return fmt.Errorf("TLS certificate %s and key %s: %w", f.Cert, f.Key, err)
	}
	if authorities == nil || len(f.Cluster) == 0 { // the CA of a leaf node is that of other servers
		return nil
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	// A server of a cluster is a client of the others, too.
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			return fmt.Errorf("TLS certificate %s: the servers of the cluster refuse it with the CA %s: %w", f.Cert, f.CA, err)
		}
	}
	return nil
}

// authoritiesIn reads a file of authorities; nil if this host does not have it.
func authoritiesIn(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s is not valid: want a PEM file with at least one certificate", file)
	}
	return pool, nil
}

// here reports whether this host has a file.
func here(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
