"""HTTP gateways: auth, endpoints, streams; ledger, admission and routing as pure cores (see `desk`)."""
