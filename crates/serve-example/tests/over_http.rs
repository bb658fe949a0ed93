//! The example as its clients see it: over HTTP on this machine, on the simulated GPU.

#[cfg(unix)]
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
#[cfg(unix)]
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use sidestream::device::Device;
use sidestream_serve_example::{Shared, batcher, serve};

/// A server on a free port. Dropping it stops the server and waits for its end.
struct Server {
    address: SocketAddr,
    batcher: Shared,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Server {
    fn start() -> Server {
        let batcher = batcher(&Device::open("sim:h200").unwrap()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let shared = Shared::clone(&batcher);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()?;
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let stopped = async { drop(stopped.await) };
                serve(listener, shared, stopped).await
            })
        });
        Server {
            address,
            batcher,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Returns the server's answer: the status, and the body.
    fn ask(&self, question: &str) -> (u16, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        let asked = agent
            .post(format!("http://{}/scores", self.address))
            .header("content-type", "application/json")
            .send(question);
        let mut answer = asked.unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap().unwrap();
        }
    }
}

#[test]
fn each_client_gets_the_scores_of_its_own_values() {
    let server = Server::start();
    std::thread::scope(|scope| {
        for client in 0..8u32 {
            let server = &server;
            scope.spawn(move || {
                for n in 0..20u32 {
                    let urgent = n % 2 == 0;
                    let question =
                        format!(r#"{{"values": [{client}, {n}, 100, -1], "urgent": {urgent}}}"#);
                    let sum = f64::from(client + n + 99);
                    let expected = format!(r#"{{"scores":[{sum:.1},100.0]}}"#);
                    assert_eq!(server.ask(&question), (200, expected));
                }
            });
        }
    });
    let statistics = server.batcher.statistics();
    assert_eq!((statistics.answered, statistics.ended()), (160, 160));
    let metrics = ureq::get(format!("http://{}/metrics", server.address)).call();
    let metrics = metrics.unwrap().body_mut().read_to_string().unwrap();
    let line = "nv_inference_request_success{model=\"scores\"} 160";
    assert!(metrics.lines().any(|have| have == line), "{metrics}");
}

#[test]
fn what_cannot_be_answered_says_why() {
    let server = Server::start();
    for (question, status, says) in [
        (r#"{"values": [1, 2, 3]}"#, 422, "array of length 4"),
        ("values", 400, "JSON"),
        (
            r#"{"values": [1, 2, 3, 4], "within_ms": 0}"#,
            503,
            "deadline",
        ),
    ] {
        let (code, text) = server.ask(question);
        assert_eq!(code, status, "{question}: {text}");
        assert!(text.contains(says), "{question}: {text}");
    }
    server.batcher.refuse();
    let (code, text) = server.ask(r#"{"values": [1, 2, 3, 4]}"#);
    assert_eq!((code, &*text), (503, "the batcher is closed"));
}

/// The server is stopped by SIGTERM, as a service manager does it.
#[cfg(unix)]
#[test]
fn a_server_that_is_asked_to_end_does_so_in_order() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_sidestream-serve-example"))
        .args(["sim:h200", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    lines.read_line(&mut address).unwrap();
    let metrics = ureq::get(format!("{}/metrics", address.trim())).call();
    assert_eq!(metrics.unwrap().status().as_u16(), 200);
    let asked = Command::new("kill").arg(server.id().to_string()).status();
    assert!(asked.unwrap().success());
    assert!(server.wait().unwrap().success());
}
