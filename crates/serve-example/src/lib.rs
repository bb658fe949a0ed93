//! A web server whose requests run as batches on a GPU.
//!
//! `POST /scores` takes `{"values": [1, 2, 3, 4], "urgent": true, "within_ms": 20}`, of which only the values are
//! required, and answers `{"scores": [...]}`. `GET /metrics` is for Prometheus. A server that is stopped still
//! answers the requests that it has accepted.
//!
//! A handler awaits the answer of its request and blocks no thread meanwhile. If a client disconnects, its handler is
//! dropped, and with it the answer: a request that is still waiting is then not computed.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use sidestream::batcher::{At, Batcher, Error, Wish};
use sidestream::prelude::{Device, Grid, Kernel, Read, Value, View, ViewMut, Write};

/// Number of values in a request.
pub const VALUES: usize = 4;
/// Number of scores in its answer.
pub const SCORES: usize = 2;

/// The batcher that all handlers share.
pub type Shared = Arc<Batcher<f32, f32>>;

/// The model in CUDA C++: the sum and the largest value of each row. Another model is another kernel, or several.
const SCORES_CU: &str = r#"
extern "C" __global__ void scores(const float* x, float* y, unsigned rows) {
    for (unsigned row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += gridDim.x * blockDim.x) {
        const float* of = x + 4 * row;
        y[2 * row] = of[0] + of[1] + of[2] + of[3];
        y[2 * row + 1] = fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3]));
    }
}
"#;

/// Returns a batcher for the model. On a GPU the model is compiled when the first batch runs, which needs NVRTC and
/// takes a tenth of a second; on a simulated one its implementation in Rust runs.
///
/// # Errors
/// Errors of the device.
pub fn batcher(device: &Device) -> sidestream::error::Result<Shared> {
    // SAFETY: the entry reads `VALUES` of x and writes `SCORES` of y for each of its rows, on any grid; the buffers
    // that it is launched with below have as many of each.
    let scores =
        unsafe { Kernel::<(Read<f32>, Write<f32>, Value<u32>)>::from_cuda(SCORES_CU, "scores") };
    let scores = scores.and_on_host(|_, (x, y, _)| {
        let rows = x.chunks_exact(VALUES).zip(y.chunks_exact_mut(SCORES));
        for (x, y) in rows {
            y[0] = x.iter().sum();
            y[1] = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        }
    });
    let batcher = Batcher::new(device, VALUES, SCORES)
        .sizes(&[1, 4, 16, 64])
        .max_delay(Duration::from_micros(500))
        .max_queue(1024)
        .classes(&[("usual", 0), ("urgent", -1)])
        .serve(move |_slot| {
            let scores = scores.clone();
            Ok(move |at: &At<'_>, x: View<'_, f32>, y: ViewMut<'_, f32>| {
                let rows = at.size();
                let grid = Grid::cover(rows, 256);
                at.stream().launch(&scores, grid, (x, y, rows as u32))
            })
        })?;
    Ok(Arc::new(batcher))
}

/// Serves until `stopped` completes, then answers the requests that were accepted.
///
/// # Errors
/// Errors of the listener.
pub async fn serve(
    listener: tokio::net::TcpListener,
    batcher: Shared,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/scores", post(scores))
        .route("/metrics", get(metrics))
        .with_state(batcher);
    axum::serve(listener, router)
        .with_graceful_shutdown(stopped)
        .await
}

/// The body of a request.
#[derive(Deserialize)]
struct Question {
    values: [f32; VALUES],
    #[serde(default)]
    urgent: bool,
    within_ms: Option<u64>,
}

/// The body of an answer.
#[derive(Serialize)]
struct Scores {
    scores: Vec<f32>,
}

async fn scores(
    State(batcher): State<Shared>,
    Json(question): Json<Question>,
) -> Result<Json<Scores>, Refused> {
    let within = question.within_ms.map(Duration::from_millis);
    let wish = Wish {
        class: Some(if question.urgent { "urgent" } else { "usual" }),
        // A deadline beyond the range of the clock is no deadline.
        deadline: within.and_then(|within| Instant::now().checked_add(within)),
    };
    let answer = batcher.submit_with(&question.values, &wish)?;
    let scores = answer.await?.to_vec();
    Ok(Json(Scores { scores }))
}

async fn metrics(State(batcher): State<Shared>) -> Response {
    let text = batcher.statistics().prometheus("scores");
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// Why there is no answer, as an HTTP status and a message.
struct Refused(Error);

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            // The client may retry later, or use another server.
            Error::Full { .. } | Error::Late { .. } | Error::Closed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Error::Expired => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, self.0.to_string()).into_response()
    }
}
