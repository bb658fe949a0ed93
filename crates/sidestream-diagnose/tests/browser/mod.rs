//! Controls headless Chromium over a pipe (`--remote-debugging-pipe`): JSON messages of the DevTools protocol, each followed by
//! a zero byte.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// The path of the browser to use.
const PATH: &str = "SIDESTREAM_BROWSER";
/// With "1", a test fails where there is no browser.
const REQUIRE: &str = "SIDESTREAM_REQUIRE_BROWSER";
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// Time after which a browser that has not answered is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one page.
pub struct Browser {
    child: Child,
    commands: Option<ChildStdin>,
    answers: Receiver<Value>,
    session: Value,
    last: u64,
    events: Vec<Value>,
    profile: PathBuf,
}

impl Browser {
    /// Starts a browser; returns `None` where there is none and none is required. `test` is a name unique to the test.
    pub fn start(test: &str) -> Option<Browser> {
        let Some(program) = find() else {
            let insists = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
            assert!(
                !insists,
                "there is no browser; install Chromium (apt-get install chromium), or state one by {PATH}"
            );
            eprintln!("{test} was skipped: there is no Chromium; {REQUIRE}=1 makes this fail");
            return None;
        };
        let profile = std::env::temp_dir().join(format!("page-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&profile);
        std::fs::create_dir_all(&profile).expect("a folder for temporary files can be made");
        // The protocol uses the file descriptors 3 and 4, which only a shell can make from the first two here.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        let commands = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (sender, answers) = channel();
        thread::spawn(move || {
            for message in output.split(0) {
                let Ok(message) = message else { return };
                let message = serde_json::from_slice(&message).expect("messages are JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            child,
            commands,
            answers,
            session: Value::Null,
            last: 0,
            events: Vec::new(),
            profile,
        };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.ask("Target.attachToTarget", target)["sessionId"].clone();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Opens a page with this text, in a window of this size.
    pub fn open(&mut self, page: &str, (width, height): (u32, u32)) {
        let file = self.profile.join("page.html");
        std::fs::write(&file, page).expect("a temporary file can be written");
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size);
        self.events.clear();
        let url = format!("file://{}", file.display());
        self.ask("Page.navigate", json!({"url": url}));
        while !self
            .events
            .iter()
            .any(|e| e["method"] == "Page.loadEventFired")
        {
            let event = self.receive();
            self.events.push(event);
        }
    }

    /// Returns the value of a JavaScript expression on the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let ask = json!({"expression": expression, "returnByValue": true});
        let answer = self.ask("Runtime.evaluate", ask);
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Moves the mouse to a point, and clicks there if `press` is set.
    pub fn mouse(&mut self, (x, y): (f64, f64), press: bool) {
        let mut kinds = vec!["mouseMoved"];
        if press {
            kinds.extend(["mousePressed", "mouseReleased"]);
        }
        for kind in kinds {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.ask("Input.dispatchMouseEvent", event);
        }
    }

    /// Returns the network requests of the page besides itself.
    pub fn requests(&mut self) -> Vec<String> {
        let sent = self.seen("Network.requestWillBeSent");
        let urls = sent
            .iter()
            .map(|e| e["request"]["url"].as_str().unwrap_or("?"));
        urls.filter(|url| !url.ends_with("/page.html"))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the errors of the page: those of scripts, and violations of its content security policy.
    pub fn complaints(&mut self) -> Vec<String> {
        let mut all = self.seen("Runtime.exceptionThrown");
        all.extend(self.seen("Log.entryAdded"));
        all.extend(self.seen("Runtime.consoleAPICalled"));
        all.iter().map(Value::to_string).collect()
    }

    fn seen(&mut self, method: &str) -> Vec<Value> {
        // Events before this answer have arrived with it.
        self.value("0");
        let events = self.events.iter().filter(|event| event["method"] == method);
        events.map(|event| event["params"].clone()).collect()
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        let commands = self.commands.as_mut().expect("the browser runs");
        write!(commands, "{message}\0").expect("the browser reads");
        commands.flush().expect("the browser reads");
        loop {
            let mut answer = self.receive();
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    fn receive(&mut self) -> Value {
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.expect("the browser answers, and does not end before it is asked to")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(mut commands) = self.commands.take() {
            let _ = write!(
                commands,
                "{}\0",
                json!({"id": 0, "method": "Browser.close"})
            );
            let _ = commands.flush();
        }
        // The browser closes its end when it exits; further messages are ignored.
        while self.answers.recv_timeout(PATIENCE).is_ok() {}
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

fn find() -> Option<PathBuf> {
    if let Some(stated) = std::env::var_os(PATH) {
        return Some(stated.into());
    }
    let folders = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let mut places = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    places.find(|place| Path::is_file(place))
}
