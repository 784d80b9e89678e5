"""langgraph: a planner and a worker as nodes of a graph, twice around, each with a model of its own."""

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph


def node(name, text):
    model = ChatOpenAI(model=name, max_tokens=2000, max_retries=0)

    def say(state):
        return {"messages": [model.invoke([SystemMessage(text), *state["messages"]])]}

    return say


graph = StateGraph(MessagesState)
graph.add_node("planner", node("planner", "Plan."))
graph.add_node("worker", node("worker", "Answer."))
graph.add_edge(START, "planner")
graph.add_edge("planner", "worker")
graph.add_conditional_edges("worker", lambda state: END if len(state["messages"]) > 4 else "planner")
print(graph.compile().invoke({"messages": [HumanMessage("What is 2 + 3?")]})["messages"][-1].content)
