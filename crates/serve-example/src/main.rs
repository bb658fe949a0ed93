//! `cargo run -p sidestream-serve-example -- sim:h200 127.0.0.1:8080`: see the library in `lib.rs`.

use std::error::Error;

use sidestream::device::Device;
use sidestream_serve_example::{batcher, serve};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let device = args.next().unwrap_or_else(|| "sim:h200".to_owned());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let batcher = batcher(&Device::open(&device)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(&address).await?;
        println!("http://{}", listener.local_addr()?);
        serve(listener, batcher, stopped()).await?;
        Ok(())
    })
}

/// Completes when Ctrl-C is pressed, or when a service manager sends SIGTERM.
async fn stopped() {
    let interrupted = async {
        // Where signals cannot be received, the server cannot be stopped in this way.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let asked_to_end = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => _ = signal.recv().await,
            Err(_) => std::future::pending::<()>().await,
        }
    };
    #[cfg(not(unix))]
    let asked_to_end = std::future::pending::<()>();
    tokio::select! {
        () = interrupted => {}
        () = asked_to_end => {}
    }
}
